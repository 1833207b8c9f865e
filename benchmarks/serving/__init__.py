"""`tilewright serve` under load: honest and hostile clients, and a kill in the middle."""
