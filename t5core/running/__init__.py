"""One call of `train`, from what it was asked for to the last checkpoint that it leaves."""
