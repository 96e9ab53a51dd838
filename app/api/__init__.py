"""HTTP: parse, call one use case, answer."""
