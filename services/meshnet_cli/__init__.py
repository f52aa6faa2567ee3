"""The `meshnet` command: where the parts are put together, for people and for scripts.

    __main__       runs one command, and turns whatever happens into an exit code
    app            the tree of commands; a command's module is imported when it is called
    commands       one module a group of commands: thin, they ask the services and print
    demo           the story that `meshnet demo` tells
    bench          the measurements
    scripted       facts that both of them state, with no model behind them
    options        the parameters that commands share
    profile        what is meant when nothing is named: flags over environment over TOML
    state_source   where a state comes from: a file, the views, or the stream
    publishing     one fact published, and what the registry made of it
    tracking       a tracker in this process
    driving        a route planned by a tracker, ready to be opened
    reaching       endpoints, addresses and certificates as people name them
    proving        what commands that prove a shard share
    registered     which files two shards hold, from the records that say so
    leaving        how a process that stays up ends, also where its backend does not come back
    remedies       what lifts what is in the way, and with which command
    lookup         what people type (prefixes, labels) to what it names
    key_files      files that hold a seed, and files with a node's request to be enrolled
    policies       a policy from a file and flags
    output         table, JSON or NDJSON on stdout
    look           status as glyph, word and colour; short keys
    claims         claims as a table
    strip          the layer strip, in characters
    progress       a bar on stderr, for people who wait
    logs           what a process that stays tells of its work
    errors         exceptions to message, advice and exit code

Data goes to stdout, everything else to stderr. Nothing heavier than cyclopts is imported until a
command needs it. Left out: deciding anything; that is done by what the commands call.
"""
