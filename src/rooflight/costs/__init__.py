"""What an op must do: FLOPs and bytes."""
