"""raydiff: personalised, private, federated training of diffusion models on Ray. Start with `federated/method.py`."""

__version__ = "0.1.0"
