"""Diagrams of a graph as Mermaid or PlantUML text."""
