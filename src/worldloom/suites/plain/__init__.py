"""Worlds of one agent that belong to no other suite: registered ones, Gymnax's and Brax's."""
