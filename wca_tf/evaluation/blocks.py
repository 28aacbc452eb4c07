"""Blocks of images that share the draws of an attack, where noise before the head cannot follow from the image."""

from wca_tf.core.errors import InputError

# The largest number of images that are attacked with the same draws.
BLOCK_SIZE = 20
# Few images are in smaller blocks, for about so many blocks. A block has two images or more, because it costs a batch.
BLOCKS = 20


def block_size(count: int) -> int:
    """Return the number of images that share an attack's draws, in an evaluation of `count` images.

    It is that of the whole evaluation, also for a part of it: parts and the whole have the same blocks.

    Examples:
        >>> [block_size(count) for count in (10, 20, 50, 100, 200, 1000)]
        [2, 2, 3, 5, 10, 20]
    """
    return min(max(-(-count // BLOCKS), 2), BLOCK_SIZE)


def shard_of(count: int, number: int, parts: int) -> slice:
    """Return the images of a part of `count` images. The parts are whole blocks, as equal as can be.

    Raises:
        InputError: there are so many parts that one has fewer than `BLOCK_SIZE` images.

    Examples:
        >>> [shard_of(90, number, 2) for number in (1, 2)]
        [slice(0, 40, None), slice(40, 90, None)]
    """
    least = -(-BLOCK_SIZE // block_size(count)) * block_size(count)
    if parts > (pieces := -(-count // least)):
        raise InputError(
            f"expected --shard of at most {pieces} parts, as a part has {least} images or more; "
            f"received {number}/{parts} of {count} images"
        )
    bounds = [min(count, pieces * each // parts * least) for each in (number - 1, number)]
    return slice(*bounds)


def size_in_blocks(batch_size: int, block: int) -> int:
    """Return the largest batch size of at most `batch_size` that divides a block."""
    return next(size for size in range(min(batch_size, block), 0, -1) if block % size == 0)
