"""Everything that was promised, checked again on one page, each with its fix."""
