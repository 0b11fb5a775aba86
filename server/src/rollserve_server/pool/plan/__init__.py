"""Pure decisions about episodes: which run where, and which are delivered next. No clock, no I/O."""
