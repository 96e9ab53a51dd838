"""Bodies, queries and answers of the API, in the names of the contract."""
