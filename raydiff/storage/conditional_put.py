"""Conditional puts: of several processes that create one name at once, exactly one succeeds."""

import time
from collections.abc import Callable

RETRY_S = 180.0  # within which a name that is refused and yet absent is tried again
PAUSE_S = 0.2  # between two attempts


def create_once(create: Callable[[], bool], is_mine: Callable[[], bool | None], where: str) -> bool:
    """Create a name unless it exists; return whether this call created it.

    A refusal proves nothing: where another request was in flight S3 answers 409 and stores nothing, which obstore shows
    as "already exists" (apache/arrow-rs-object-store#852), and a request that is sent again after a lost answer meets
    its own object. So the name is read: absent means try again, and only another object means False.

    Args:
        create: Attempt once; return False where the name is said to exist. May raise ConnectionError without an answer.
        is_mine: Return whether the stored object is the one that `create` makes; None where there is none.
        where: Path or URI of the name, for the error.

    Raises:
        ConnectionError: The storage does not answer, or refuses for RETRY_S what it does not have.
    """
    deadline = time.monotonic() + RETRY_S
    while True:
        error = ConnectionError(f"{where} cannot be created: the storage says that it exists, and does not have it")
        try:
            if create():
                return True
        except ConnectionError as e:
            error = e
        mine = is_mine()
        if mine is not None:
            return mine
        if time.monotonic() > deadline:
            raise error
        time.sleep(PAUSE_S)
