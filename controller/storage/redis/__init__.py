"""Redis as the store and the journal use it: connection, keyspace, lease and fence."""
