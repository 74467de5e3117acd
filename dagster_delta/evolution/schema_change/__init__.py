"""Changes of a schema as plans: what each action does to a draft of the table."""
