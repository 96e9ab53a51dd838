"""The history of the schema, the same on SQLite and PostgreSQL."""
