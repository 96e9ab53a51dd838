"""The environment of a launched plan, and how its processes find each other."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from cost_models.cluster_input import load_cluster_preset, resolve_cluster
from search.launch.environment import environment, reasons
from search.launch.rendezvous import by_hand, exports, slurm_script, start, torchrun
from tests.search.launch_jobs import launch_job


def rtx(nodes: int = 1) -> Any:
    fabric = {} if nodes == 1 else {"inter_node": {"kind": "ethernet", "gbps_per_gpu": 10}}
    return resolve_cluster({"nodes": nodes, "gpus_per_node": 8, "gpu": "rtx-4090-24gb", **fabric})


class TestEnvironment:
    def test_a_plain_job_needs_nothing(self) -> None:
        assert environment(launch_job(framework="ddp")) == {}

    def test_expandable_segments_reach_the_allocator(self) -> None:
        assert environment(launch_job(framework="fsdp2", expandable_segments=True)) == {
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"
        }

    def test_amd_has_an_allocator_of_its_own_name(self) -> None:
        job = launch_job(framework="fsdp2", cluster=load_cluster_preset("mi300x-node", 1), expandable_segments=True)
        assert environment(job) == {"PYTORCH_HIP_ALLOC_CONF": "expandable_segments:True"}

    def test_cards_without_peer_access_say_so_to_nccl(self) -> None:
        assert environment(launch_job(framework="ddp", cluster=rtx())) == {"NCCL_P2P_DISABLE": "1"}

    def test_ethernet_between_nodes_is_not_searched_for_rdma(self) -> None:
        assert environment(launch_job(framework="ddp", cluster=rtx(2))) == {
            "NCCL_P2P_DISABLE": "1",
            "NCCL_IB_DISABLE": "1",
        }

    def test_megatron_has_one_queue_with_tensor_or_context_parallelism(self) -> None:
        for job in (launch_job(tensor_parallel_size=2), launch_job(context_parallel_size=2)):
            assert environment(job)["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
        assert "CUDA_DEVICE_MAX_CONNECTIONS" not in environment(launch_job())

    def test_blackwell_has_no_such_need(self) -> None:
        blackwell = launch_job(cluster=load_cluster_preset("dgx-b200", 1), tensor_parallel_size=2)
        assert "CUDA_DEVICE_MAX_CONNECTIONS" not in environment(blackwell)

    def test_megatron_fsdp_has_several_queues_even_with_tensor_parallelism(self) -> None:
        job = launch_job(tensor_parallel_size=2, zero_stage=3)
        assert environment(job)["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"

    def test_an_optimizer_on_the_host_has_all_of_its_cores(self) -> None:
        job = launch_job(zero_stage=1, offload="optimizer")
        assert job.cluster.host is not None
        assert environment(job)["OMP_NUM_THREADS"] == str(job.cluster.host.cpu_cores // 8)

    def test_nanotron_is_left_without_torch_s_debugging(self) -> None:
        assert environment(launch_job(framework="nanotron")) == {}

    def test_every_variable_has_a_reason(self) -> None:
        job = launch_job(cluster=rtx(2), tensor_parallel_size=2, zero_stage=1, offload="optimizer")
        assert [line.split("=")[0] for line in reasons(job)] == list(environment(job))
        assert all(len(line.split(": ", 1)[1]) > 20 for line in reasons(job))


class TestTorchrun:
    def test_one_node_stands_alone(self) -> None:
        command = torchrun(launch_job(), ["train.py", "--bf16", "--name", "two words"])
        assert shlex.split(command.replace("\\\n", " ")) == [
            *("torchrun", "--standalone", "--nproc-per-node", "8", "train.py", "--bf16", "--name", "two words")
        ]

    def test_many_nodes_are_numbered_and_not_first_come(self) -> None:
        command = torchrun(launch_job(cluster=load_cluster_preset("dgx-h100", 4)), ["train.py"])
        assert "--nnodes 4" in command
        assert '--node-rank "$NODE_RANK"' in command
        assert "rdzv" not in command

    def test_variables_stay_variables(self) -> None:
        assert torchrun(launch_job(), ["train.py", "--data-path", "$DATA_PATH"]).endswith('--data-path "$DATA_PATH"')


class TestSlurm:
    def test_a_tray_of_a_rack_has_four_gpus_and_the_rack_is_one_segment(self) -> None:
        rack = load_cluster_preset("gb200-nvl72", 18)
        script = slurm_script(launch_job(cluster=rack), "torchrun train.py", {}).content
        assert "#SBATCH --nodes=18\n" in script
        assert "#SBATCH --gpus-per-node=4\n" in script
        assert f"#SBATCH --segment={rack.nvlink_domain_gpus // 4}\n" in script

    def test_hosts_that_are_a_domain_each_need_no_segment(self) -> None:
        script = slurm_script(launch_job(cluster=load_cluster_preset("dgx-h100", 2)), "torchrun train.py", {}).content
        assert "--segment" not in script

    @pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
    def test_each_node_runs_the_command_with_its_number_and_the_first_node_s_name(self, tmp_path: Any) -> None:
        job = launch_job(cluster=replace(load_cluster_preset("dgx-h100", 2), host=None))
        command = torchrun(job, ["train.py", "--pattern", "([0]*1+[1]*3)", "--path", "$DATA_PATH"])
        script = slurm_script(job, command, {"DATA_PATH": "/a b"})
        (tmp_path / script.path).write_text(script.content)
        stubs = {
            # As many hosts as no pipe holds: whoever reads only the first line breaks it.
            "scontrol": "echo first; seq 100000",
            "srun": 'shift; for n in 0 1; do SLURM_NODEID=$n "$@"; done',
            "torchrun": 'printf "%s\\n" "$@"; echo end',
        }
        for name, body in stubs.items():
            (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
            (tmp_path / name).chmod(0o755)
        run = subprocess.run(
            ["bash", str(tmp_path / script.path)],
            capture_output=True,
            text=True,
            check=True,
            env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "x"},
        )
        first, second = run.stdout.strip().removesuffix("end").split("\nend\n")
        expected = ["--nnodes", "2", "--node-rank", "0", "--master-addr", "first", "--master-port", "29500"]
        assert first.split("\n")[:8] == expected
        assert first.split("\n")[-5:] == ["train.py", "--pattern", "([0]*1+[1]*3)", "--path", "/a b"]
        assert second.split("\n")[3] == "1"

    def test_what_to_type(self) -> None:
        assert start(launch_job(), "bash train.sh") == "bash train.sh"
        assert start(launch_job(cluster=load_cluster_preset("dgx-h100", 2)), "bash train.sh") == "sbatch train.sbatch"

    def test_what_to_type_without_it(self) -> None:
        assert by_hand(launch_job(), "bash train.sh") == ()
        (note,) = by_hand(launch_job(cluster=load_cluster_preset("dgx-h100", 4)), "bash train.sh")
        assert "`bash train.sh`" in note
        assert "from 0 to 3" in note

    def test_exports_are_quoted(self) -> None:
        assert exports({"A": "x y", "B": "1"}) == "export A='x y'\nexport B=1\n"
