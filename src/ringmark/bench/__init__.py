"""The measuring core: what torchrun runs, the clock, the check, and what they say of the machine."""
