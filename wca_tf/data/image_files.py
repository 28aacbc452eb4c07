"""PNG, JPEG, GIF and BMP files: the shape that their headers announce, before any is decoded.

A file of 400 kB can announce 400 million pixels, which cost a server gigabytes and seconds."""

import tensorflow as tf

HEADER = 30  # bytes, as many as these functions read
PNG, GIF, BMP, JPEG = b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM", b"\xff\xd8"


# A graph: eagerly, its operations would take ten times as long as the decoding of a small image.
@tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False, jit_compile=False)
def announced_shape(contents: tf.Tensor) -> tf.Tensor:
    """Return height, width and channels, int64 [3], of the image file `contents`, string [].

    Channels are 1 for grey and 3 for colours, without transparency; 0 for a BMP of colours by number.

    Raises:
        tf.errors.InvalidArgumentError: a file of another format, or a broken JPEG header.
    """
    start = tf.strings.substr(contents, 0, HEADER)
    header = tf.cast(tf.io.decode_raw(tf.strings.substr(start + b"\0" * HEADER, 0, HEADER), tf.uint8), tf.int64)

    def number(first: int, count: int, big_endian: bool = False) -> tf.Tensor:
        places = range(count)[::-1] if big_endian else range(count)
        return sum(header[first + place] * 256**power for power, place in enumerate(places))

    def begins(mark: bytes) -> tf.Tensor:
        return tf.reduce_all(header[: len(mark)] == list(mark))

    def grey_or_colours(grey: tf.Tensor) -> tf.Tensor:
        return tf.where(grey, tf.constant(1, tf.int64), tf.constant(3, tf.int64))

    def of_png() -> tf.Tensor:
        kind = header[25]  # 0 and 4 are grey
        width, height = number(16, 4, big_endian=True), number(20, 4, big_endian=True)
        return tf.stack([height, width, grey_or_colours((kind == 0) | (kind == 4))])

    def of_jpeg() -> tf.Tensor:
        height, width, channels = tf.unstack(tf.image.extract_jpeg_shape(contents, tf.int64))
        return tf.stack([height, width, grey_or_colours(channels == 1)])

    def of_bmp() -> tf.Tensor:
        width, height = number(18, 4), number(22, 4)  # signed: a negative height is of rows from top to bottom
        sides = [tf.minimum(side, 2**32 - side) for side in (height, width)]
        return tf.stack([*sides, tf.where(number(28, 2) >= 24, tf.constant(3, tf.int64), tf.constant(0, tf.int64))])

    def of_another() -> tf.Tensor:
        with tf.control_dependencies([tf.debugging.Assert(False, ["expected a PNG, JPEG, GIF or BMP file"])]):
            return tf.constant([0, 0, 0], tf.int64)

    formats = [
        (begins(PNG), of_png),
        (begins(JPEG), of_jpeg),
        (begins(GIF), lambda: tf.stack([number(8, 2), number(6, 2), tf.constant(3, tf.int64)])),
        (begins(BMP), of_bmp),
    ]
    return tf.case(formats, default=of_another)


def announced_pixels(contents: tf.Tensor) -> tf.Tensor:
    """Return height times width, int64 [], of an image file; raise what `announced_shape` raises."""
    return tf.reduce_prod(announced_shape(contents)[:2])


def decode(contents: tf.Tensor, max_pixels: int) -> tf.Tensor:
    """Return the image of a file (of an animation the first frame), uint8 [H, W, 1 to 4]. It is for graphs.

    Args:
        contents: string [].
        max_pixels: the largest number of pixels to decode.

    Raises:
        tf.errors.InvalidArgumentError: no image file, or one of more pixels.
    """
    pixels = announced_pixels(contents)
    fits = tf.debugging.Assert(pixels <= max_pixels, [f"expected at most {max_pixels} pixels, received", pixels])
    with tf.control_dependencies([fits]):
        return tf.io.decode_image(tf.identity(contents), expand_animations=False)
