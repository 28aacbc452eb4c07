"""PNG, JPEG, GIF and BMP files: how many pixels their headers announce, before any is decoded.

A file of 400 kB can announce 400 million pixels, which cost a server gigabytes and seconds."""

import tensorflow as tf

HEADER = 26  # bytes, as many as these functions read
PNG, GIF, BMP, JPEG = b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM", b"\xff\xd8"


# A graph: eagerly, its operations would take ten times as long as the decoding of a small image.
@tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False, jit_compile=False)
def announced_pixels(contents: tf.Tensor) -> tf.Tensor:
    """Return height times width, int64 [], of the image file `contents`, string [].

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

    def of_bmp() -> tf.Tensor:
        width, height = number(18, 4), number(22, 4)  # signed: a negative height is of rows from top to bottom
        return tf.minimum(width, 2**32 - width) * tf.minimum(height, 2**32 - height)

    def of_another() -> tf.Tensor:
        with tf.control_dependencies([tf.debugging.Assert(False, ["expected a PNG, JPEG, GIF or BMP file"])]):
            return tf.constant(0, tf.int64)

    formats = [
        (begins(PNG), lambda: number(16, 4, big_endian=True) * number(20, 4, big_endian=True)),
        (begins(JPEG), lambda: tf.reduce_prod(tf.image.extract_jpeg_shape(contents, tf.int64)[:2])),
        (begins(GIF), lambda: number(6, 2) * number(8, 2)),
        (begins(BMP), of_bmp),
    ]
    return tf.case(formats, default=of_another)


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
