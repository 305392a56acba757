"""How ranks talk: the mesh and its groups, rings, all-to-all, and a count of every byte sent."""
