"""Every query of the service. Repositories flush but never commit: the unit of work does."""
