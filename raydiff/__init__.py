"""raydiff: personalised, private, federated training of diffusion models on Ray. Start with `method.py`."""
