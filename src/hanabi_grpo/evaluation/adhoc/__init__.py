"""Ad-hoc teamwork: players of a run with partners that they did not train with, and bounds."""
