"""The tables of a toolgraft database, and the migrations of older databases."""

APPLICATION_ID = 0x746F6F6C

MIGRATIONS = (
    f"""
    PRAGMA application_id = {APPLICATION_ID};
    CREATE TABLE session (name TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE turn (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, turn_id TEXT NOT NULL, user_key BLOB NOT NULL,
        bound INTEGER NOT NULL, created_at REAL NOT NULL, record TEXT NOT NULL, UNIQUE (session, turn_id)
    );
    CREATE INDEX turn_unbound ON turn (session, user_key) WHERE bound = 0;
    CREATE INDEX turn_age ON turn (created_at);
    CREATE TABLE turn_key (
        session TEXT NOT NULL, key BLOB NOT NULL, delivered INTEGER NOT NULL, turn INTEGER NOT NULL,
        PRIMARY KEY (session, key, delivered, turn)
    ) WITHOUT ROWID;
    CREATE INDEX turn_key_turn ON turn_key (turn);
    CREATE TABLE call (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, call_id TEXT NOT NULL UNIQUE, session TEXT NOT NULL,
        turn INTEGER NOT NULL, name TEXT NOT NULL, status TEXT NOT NULL, record TEXT NOT NULL
    );
    CREATE INDEX call_session ON call (session);
    CREATE INDEX call_turn ON call (turn);
    CREATE INDEX call_open ON call (status, session) WHERE status IN ('pending', 'running');
    CREATE TABLE cached_tools (
        session TEXT NOT NULL, cached_content TEXT NOT NULL, created_at REAL NOT NULL, record TEXT NOT NULL,
        PRIMARY KEY (session, cached_content)
    ) WITHOUT ROWID;
    CREATE TABLE event (
        event_id INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, type TEXT NOT NULL, data TEXT NOT NULL,
        created_at REAL NOT NULL
    );
    CREATE INDEX event_session ON event (session);
    """,
    """
    ALTER TABLE call ADD COLUMN free_at REAL;
    UPDATE call SET free_at = 0 WHERE status = 'pending';
    CREATE INDEX call_free ON call (session) WHERE free_at IS NOT NULL;
    """,
    """
    CREATE TABLE response (
        seq INTEGER PRIMARY KEY, session TEXT NOT NULL, response_id TEXT NOT NULL, previous INTEGER,
        thread INTEGER NOT NULL, record TEXT NOT NULL, tools TEXT, document TEXT, UNIQUE (session, response_id)
    );
    CREATE INDEX response_previous ON response (previous);
    CREATE INDEX response_thread ON response (thread);
    CREATE TABLE thread (seq INTEGER PRIMARY KEY, session TEXT NOT NULL, used_at REAL NOT NULL);
    CREATE INDEX thread_session ON thread (session);
    CREATE INDEX thread_age ON thread (used_at);
    CREATE TABLE conversation (
        session TEXT NOT NULL, name TEXT NOT NULL, head INTEGER NOT NULL, PRIMARY KEY (session, name)
    ) WITHOUT ROWID;
    CREATE INDEX conversation_head ON conversation (head);
    CREATE TABLE given_call (
        session TEXT NOT NULL, call_id TEXT NOT NULL, response INTEGER NOT NULL, part TEXT NOT NULL,
        PRIMARY KEY (session, call_id)
    ) WITHOUT ROWID;
    CREATE INDEX given_call_response ON given_call (response);
    """,
    """
    CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    INSERT INTO meta VALUES ('secret', randomblob(32)), ('epoch', lower(hex(randomblob(4))));
    """,
    """
    ALTER TABLE call RENAME COLUMN free_at TO claimable_at;
    ALTER TABLE call ADD COLUMN proxy_id TEXT;
    CREATE INDEX call_proxy ON call (proxy_id) WHERE proxy_id IS NOT NULL;
    CREATE INDEX call_leased ON call (claimable_at) WHERE claimable_at > 0;
    WITH known AS (
        SELECT call.seq, status, claimable_at, call.record ->> 'loop_id' AS loop_id,
            call.record ->> 'approval' AS approval,
            call.record ->> 'surface' = 'live' OR NOT turn.record ->> 'delivered' AS undelivered,
            session.record ->> ('$.toolset.rules."' || call.name || '"') AS rules
        FROM call JOIN turn ON turn.seq = call.turn LEFT JOIN session ON session.name = call.session
        WHERE status IN ('pending', 'running')
    ), owned AS (
        SELECT *, CASE WHEN claimable_at > 0 OR rules ->> '$.executor.type' = 'worker' THEN 'workers'
            WHEN status = 'running' OR loop_id IS NOT NULL THEN 'loop' ELSE 'hand' END AS owner
        FROM known
    ), given AS (
        SELECT *, owner = 'workers' AND (claimable_at > 0 OR claimable_at = 0
                AND (approval = 'approved' OR NOT coalesce(rules ->> 'approval', 0))) AS released,
            coalesce(loop_id, iif(undelivered AND owner <> 'hand', 'before', NULL)) AS proxy
        FROM owned
    )
    UPDATE call SET proxy_id = proxy, claimable_at = iif(released, given.claimable_at, NULL), record = json_set(
        record, '$.owner', owner, '$.released', json(iif(released, 'true', 'false')),
        '$.redeliver', json(iif(rules ->> 'idempotent', 'true', 'false')), '$.proxy_id', proxy
    ) FROM given WHERE given.seq = call.seq;
    """,
    """
    UPDATE session SET record = json_set(record, '$.version', 1);
    """,
    """
    CREATE TABLE plain_key (
        session TEXT NOT NULL, key BLOB NOT NULL, noted INTEGER NOT NULL, chain BLOB NOT NULL,
        PRIMARY KEY (session, key)
    ) WITHOUT ROWID;
    CREATE INDEX plain_key_noted ON plain_key (noted);
    """,
    """
    CREATE TABLE proxy (proxy_id TEXT PRIMARY KEY, seen_at REAL NOT NULL) WITHOUT ROWID;
    CREATE TABLE request (
        session TEXT NOT NULL, key BLOB NOT NULL, turn INTEGER NOT NULL, PRIMARY KEY (session, key, turn)
    ) WITHOUT ROWID;
    CREATE INDEX request_turn ON request (turn);
    """,
    """
    DROP INDEX IF EXISTS plain_key_noted;
    """,
    """
    CREATE TABLE unsent (
        seq INTEGER PRIMARY KEY, session TEXT NOT NULL, response_id TEXT NOT NULL, key BLOB NOT NULL,
        proxy_id TEXT NOT NULL, broke_off REAL, kept_at REAL NOT NULL, answer TEXT NOT NULL,
        UNIQUE (session, response_id)
    );
    """,
    """
    DROP INDEX turn_unbound;
    CREATE INDEX turn_unbound ON turn (session, user_key) WHERE bound = 0 AND user_key <> x'';
    ALTER TABLE turn ADD COLUMN request_key BLOB;
    UPDATE turn SET request_key = request.key FROM request WHERE request.turn = turn.seq;
    DROP TABLE request;
    CREATE INDEX turn_request ON turn (session, request_key) WHERE request_key IS NOT NULL;
    """,
    """
    INSERT OR REPLACE INTO meta SELECT 'last_event', seq FROM sqlite_sequence WHERE name = 'event';
    CREATE TABLE kept_event (
        event_id INTEGER PRIMARY KEY, session TEXT NOT NULL, type TEXT NOT NULL, data TEXT NOT NULL,
        created_at REAL NOT NULL
    );
    INSERT INTO kept_event SELECT event_id, session, type, data, created_at FROM event;
    DROP TABLE event;
    ALTER TABLE kept_event RENAME TO event;
    CREATE INDEX event_session ON event (session);
    """,
    """
    CREATE INDEX call_name ON call (name);
    CREATE INDEX call_not_done ON call (status) WHERE status IN ('failed', 'denied', 'expired');
    CREATE INDEX unsent_key ON unsent (session, key);
    """,
    """
    ALTER TABLE call ADD COLUMN parts TEXT;
    """,
)
"""The script at index n migrates a database from `user_version` n to n + 1.

`record` is the whole record as JSON; the other columns are for look-ups. `turn.seq` and `call.seq` are the order of
saving. `call.claimable_at` is the time from which the call can be claimed, or NULL. `call.proxy_id` is NULL once a call
is final. Migrated open calls without an owner belong to the workers if workers ran them, or to a proxy that is gone if
a loop waited for them or their turn was never delivered. `call.parts`: the parts of the result as JSON, which may be
megabytes and are rarely read with the record.

`turn.request_key`: of an undelivered turn, for retries; else NULL. `thread.seq` is the `seq` of its first response;
threads have their own rows because small rows are cheaper to update. `response.record` has no `tools` and `document`,
which are large, and not needed for a history. `plain_key`: the keys of turns without calls (`_sqlite_notes`); `noted`
is in hours. It has no index by age, which would double the cost of each note: expiry scans the table. `unsent`: the
undelivered answers of front doors.

Each index of `call` serves a list of calls that may be rare: of a session, of a tool, open, or not `done`.

`event` is not AUTOINCREMENT, which writes a page of `sqlite_sequence` in each transaction. Still no number is used
twice: see `LAST_EVENT`."""

LAST_EVENT = """
    SELECT max(
        (SELECT coalesce(max(event_id), 0) FROM event),
        (SELECT coalesce(max(value), 0) FROM meta WHERE name IN ('lost_event', 'last_event'))
    )
"""
"""The number of the last event, even if it is deleted: expiry stores the last deleted number (`lost_event`), and the
deletion of a session is itself an event. `last_event`: of a database that was migrated or recovered."""

VERSION = len(MIGRATIONS)
PAGE_SIZE = 2048
