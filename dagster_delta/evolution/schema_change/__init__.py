"""Schema changes as plans: the effect of each action on a draft of the table."""
