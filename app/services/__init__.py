"""Use cases: each opens its unit of work, calls repositories, and answers domain objects."""
