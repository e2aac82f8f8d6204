"""What the gate is told: limits by profile, operator and controller, and the controller itself."""
