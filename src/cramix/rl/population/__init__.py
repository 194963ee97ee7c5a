"""Many agents at once: one network call for all of them, their environments in processes."""
