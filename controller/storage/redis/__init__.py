"""Redis as both the store and the journal see it: connection, keyspace, lease and fence."""
