"""What several tables share: LangGraph's checkpointers, and the work that they are given."""
