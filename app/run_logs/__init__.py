"""Training logs and tables as RunRecords: text lines in, records out; no SQL, no web.

lines.py          a file as bounded lines of text
formats.py        the formats, and how a file's own is recognised
tables.py         CSV and JSON Lines; template.py: files to begin with
megatron*.py torchtitan*.py torchtune.py nanotron.py deepspeed*.py hf_trainer.py    one framework's log each
facts.py          what a log says of a run; steady.py: its step time; stages.py: its peaks by pipeline stage
completion.py     with what the uploader adds: a RunRecord, or what is missing or contradicts, by name
"""
