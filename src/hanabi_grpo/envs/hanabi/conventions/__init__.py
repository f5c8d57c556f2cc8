"""What a team's moves mean to its players: games to counters (`counts`), figures (`report`) and tables (`cells`)."""
