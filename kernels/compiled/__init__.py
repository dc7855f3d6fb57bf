"""What compiled CPU operations share: the compiler's settings, vector instructions, and scalar functions."""
