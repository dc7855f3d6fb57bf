"""The likeliest token of each row of logits, compiled for the CPU, and its plain form."""
