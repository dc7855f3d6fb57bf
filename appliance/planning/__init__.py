"""Plans as a person chooses between them: what a rig would give here, the alternatives, and what each change costs."""
