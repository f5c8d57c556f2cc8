"""The page of a team's conventions."""
