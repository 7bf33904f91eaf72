"""Why is my loader frozen: a look from outside, before, during and after training."""
