"""The interface of all nets, whatever their defence, and the parts that defences are built from."""
