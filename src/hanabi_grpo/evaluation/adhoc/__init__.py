"""Ad-hoc teamwork: players of a run beside partners that they did not train with, and bounds."""
