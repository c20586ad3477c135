-- Part 9: jobs that no index names any more, because somebody deleted it. Their records are still there, but only SCAN
-- finds them, so a client does that, when the books say that something is amiss.

-- Puts a job where its record says that it is. Says whether it was not there.
local function restore(books, key, record, now, lease_ms, patience_ms)
  local tag, band, tenant = books.tag, band_of(record), tenant_of(record)
  local deadline = number(record.deadline)
  if is_running(record) then
    if shared(tag, 'ZSCORE', name(tag, 'lease'), key) then return false end
    shared(tag, 'ZADD', name(tag, 'lease'), now + lease_ms, key) -- a worker that lives renews it
    return true
  end
  if deadline > 0 then shared(tag, 'ZADD', name(tag, 'due'), deadline, key) end
  if record.back == '1' then
    if shared(tag, 'LPOS', name(tag, 'back', band), key) then return false end
    shared(tag, 'RPUSH', name(tag, 'back', band), key)
    return true
  end
  local q, is_there = name(tag, 'q', band .. ':' .. tenant), true
  if not shared(tag, 'ZSCORE', q, key) then
    shared(tag, 'ZADD', q, deadline > 0 and deadline or number(record.created) + patience_ms, key)
    add_tokens(books, band, tenant, number(record.cost))
    is_there = false
  end
  if not shared(tag, 'ZSCORE', name(tag, 'turn', band), tenant) then
    start_waiting(books, band, tenant, now)
    is_there = false
  end
  return not is_there
end

-- FCALL headway_restore 1 {lane} <ticket> <lease ms> <patience ms>, then keys of jobs of the lane
-- -> how many of them were in no index. Without keys: the search that began with this ticket is over.
register('headway_restore', function(keys, args)
  local found, problem = figures(args, 1, {{'ticket', 0, 1e15}, LEASE, {'patience_ms', 0, MAX_MS}})
  if problem then return problem end
  local tag, now, restored = keys[1], now_ms(), 0
  local books = open_books(tag)
  local lost = get(books, 'lost')
  for at = 4, #args do
    local record = is_job_key(args[at]) and load_record(tag, args[at])
    if record and (is_queued(record) or is_running(record))
      and restore(books, args[at], record, now, found[2], found[3]) then
      restored = restored + 1
    end
  end
  if #args == 3 and lost == found[1] then put(books, 'lost', 0) end
  if restored > 0 then
    shared(tag, 'XADD', name(tag, 'wake'), 'MAXLEN', 8, '*', 'job', '')
    for _, band in ipairs(BANDS) do recount(books, band) end
    put(books, 'running', shared(tag, 'ZCARD', name(tag, 'lease')))
  end
  save(books)
  return restored
end, {'allow-oom'})
