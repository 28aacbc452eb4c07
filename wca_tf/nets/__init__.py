"""What a net is to the rest of the package, whatever its defence, and the parts that defences are built of."""
