"""What PyTorch itself saves for the backward of one transformer block, recorded as test data.

A development tool: `torch` and `transformers` are no dependencies of the product. In an environment of their own (CPU
builds will do, every tensor is on the meta device):

    pip install torch==2.13.0 transformers==5.24.0
    pip install --no-deps megatron-core==0.16.1 peft==0.21.2 accelerate==1.15.0
    python -m benchmarks.torch_truth

writes tests/data/torch_saved_bytes.json, which tests/cost_models/memory/test_saved_against_torch.py reads. Two models
are run that differ by a layer, and storages counted that outlive the forward pass; what layers share (masks, rotary
tables) so drops out, and what a checkpoint's closure holds is seen too.
"""
