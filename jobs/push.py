"""`raydiff push`, from a checkout."""

if __name__ == "__main__":  # A process that this one spawns imports it again.
    from _checkout import main

    main("push")
