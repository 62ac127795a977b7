"""What a run leaves behind: the run folder, metrics, trackers, evaluation results, tables and the HTML report."""
