"""What is played: environments, their games and their scripted players. No torch, no HTTP."""
