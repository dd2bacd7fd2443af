"""The view: what is sent, folded from the history and rendered to the same bytes in every process."""
