"""What an error means and what to change: the known ones, how they are found in a log, what a run's own values say."""
