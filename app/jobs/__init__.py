"""Background work: the queue wakes workers, the jobs table says who works on what."""
