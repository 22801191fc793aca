"""Three engines that move a state forward in time, each computed on its own."""
