"""From a plan to the files that start it: one module for each target."""
