-- Part 15: may a job be posted now?

-- FCALL headway_probe 1 {lane} -> ok
-- Does nothing; yet it is a function that might write, and so the server refuses it whenever it would refuse a submit:
-- full, read-only, without its replicas, unable to write to its disk.
register('headway_probe', function() return 'ok' end)
