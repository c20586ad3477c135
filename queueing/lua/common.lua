-- Headway's function library, part 1 of 6: names, clock, records.
--
-- Keys are described in queueing/keys.py. KEYS[1] of each function is a lane's hash tag, such as
-- {smollm2-135m:0}; every other key is derived from it, so a call touches one Cluster slot. All times are
-- this server's clock in milliseconds. Numbers travel as strings, except where redis.call formats them.

local BANDS = {'interactive', 'standard', 'batch'}
local MAX_BODY_BYTES = 1048576
local DEAD_LETTERS_KEPT = 1000

local function name(tag, kind, suffix)
  if suffix then return kind .. ':' .. tag .. ':' .. suffix end
  return kind .. ':' .. tag
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function table_of(flat)
  local fields = {}
  for at = 1, #flat, 2 do fields[flat[at]] = flat[at + 1] end
  return fields
end

local function number(text)
  return tonumber(text) or 0
end

-- A key of another type is not ours: each write to it would fail, in the middle of a call that has already
-- taken a job out of its queue. It goes, with a note among the dead letters.
local function expect(tag, key, kind)
  local found = redis.call('TYPE', key).ok
  if found == kind or found == 'none' then return end
  redis.call('DEL', key)
  redis.pcall('XADD', name(tag, 'dlq'), 'MAXLEN', DEAD_LETTERS_KEPT, '*', 'job', '', 'tenant', '',
    'reason', 'wrong_type: ' .. kind .. ' expected, ' .. found .. ' deleted: ' .. key, 'attempts', '0', 'tokens', '0')
end

-- Makes sure that a lane's shared keys can be written: called before anything of a job is changed.
local function mend(tag)
  expect(tag, name(tag, 'dlq'), 'stream')
  expect(tag, name(tag, 'wake'), 'stream')
  expect(tag, name(tag, 'lane'), 'hash')
  expect(tag, name(tag, 'lease'), 'zset')
  expect(tag, name(tag, 'due'), 'zset')
  for _, band in ipairs(BANDS) do
    expect(tag, name(tag, 'q', band), 'stream')
    expect(tag, name(tag, 'back', band), 'list')
  end
end

local function is_job_key(text)
  return type(text) == 'string' and #text <= 64 and text:match('^[%w_%-]+$') ~= nil
end

-- A job's record as a table, or nil. A key of another type is not ours to keep: it would fail every call.
local function load_record(tag, key)
  local j = name(tag, 'j', key)
  local flat = redis.pcall('HGETALL', j)
  if flat.err then
    redis.call('DEL', j)
    return nil
  end
  if #flat == 0 then return nil end
  return table_of(flat)
end

local function is_queued(record) return record.state == 'queued' end
local function is_running(record) return record.state == 'running' end

-- Whether a claim token is the one under which the job runs now.
local function owns(record, token)
  return record ~= nil and is_running(record) and token ~= '' and record.token == token
end

local function is_cancelled(record)
  return record.cancel ~= nil and record.cancel ~= ''
end

local function is_past_deadline(record, now)
  local deadline = number(record.deadline)
  return deadline > 0 and deadline <= now
end

-- Readers wait for these; whoever misses one finds the entries by polling.
local function hint(tag, keys)
  if #keys > 0 then redis.call('PUBLISH', 'hint:' .. tag, table.concat(keys, ' ')) end
end

local function queued_jobs(tag)
  local total = 0
  for _, band in ipairs(BANDS) do
    total = total + redis.call('XLEN', name(tag, 'q', band)) + redis.call('LLEN', name(tag, 'back', band))
  end
  return total
end

-- Takes a waiting job out of its queue.
local function dequeue(tag, key, record)
  if record.entry and record.entry ~= '' then
    redis.call('XDEL', name(tag, 'q', record.band), record.entry)
  else
    redis.call('LREM', name(tag, 'back', record.band), 1, key)
  end
  redis.call('ZREM', name(tag, 'due'), key)
end

local function register(function_name, callback, flags)
  redis.register_function{function_name = function_name, callback = callback, flags = flags or {}}
end
